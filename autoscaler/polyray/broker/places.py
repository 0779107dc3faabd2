"""The place of what waits, told without telling tenants of each other."""

from __future__ import annotations

from collections.abc import Sequence

from polyray.core.explain import Explanation

#: How many ids an explanation names; the rest is a count.
MOST_NAMED = 10


def placed(explanation: Explanation, position: int, ahead: Sequence[str], ahead_of_others: int) -> Explanation:
    """Return it with the place in the queue (1 is next). Workloads of other tenants are counted, never named."""
    where = {"position": position, "ahead": list(ahead[:MOST_NAMED]), "ahead_of_other_tenants": ahead_of_others}
    return Explanation(explanation.code, explanation.cause, explanation.unblocks, {**explanation.facts, **where})
