"""How the interpreter divides a process's time where requests are answered beside long computations."""

from __future__ import annotations

import gc
import sys

#: A thread that computes is asked to let others in after so long. Python's own five milliseconds are paid at each of
#: the many waits of a request while the broker plans a long queue.
SWITCH_SECONDS = 0.001
#: How many more objects than at the last time there are when garbage is looked for, and how many such times make one of
#: the next generation. A queue of ten thousand is a million objects that are no garbage: Python's own 700, 10, 10
#: walks through all of them at nearly every plan, and nobody is answered meanwhile.
GARBAGE = (50_000, 20, 50)


def answer_soon() -> None:
    """Set this process up so that no answer waits long for what other threads compute, or for the garbage collector."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*GARBAGE)
