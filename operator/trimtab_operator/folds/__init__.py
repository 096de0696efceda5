"""What each record changes in a run's state, one room per kind of thing; `journal_fold` names them all. Pure."""
