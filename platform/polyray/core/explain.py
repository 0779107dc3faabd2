"""Why something waits or was refused, as data.

`code` is a stable word that programs may match; `cause` says what is the matter in one sentence;
`unblocks` what would end the wait.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Explanation:
    code: str
    cause: str
    unblocks: str = ""
    #: Figures behind the sentence, such as {"position": 3, "ahead": ["job-..."]}.
    facts: dict[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
