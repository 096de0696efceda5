"""An incident as one page: what was read becomes frozen values (`gathering`, `views`), those sections, those a page."""
