"""How a process of a test's world ends."""

import os
import sys
from typing import Never


def leave() -> Never:
    """End with 0 and close nothing, as the trainer does.

    A thread of gloo may still have to give a tensor back, for which it needs Python's lock; a process that is about to
    end the usual way is aborted for that.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
