"""The page on which a person approves a device login: plain HTML, no script, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from html import escape

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:24rem;margin:4rem auto;padding:0 1rem}"
    "label{display:block;margin:.75rem 0}"
    "input{display:block;width:100%;padding:.4rem;font:inherit;box-sizing:border-box}"
    "button{padding:.4rem 1rem;margin:.75rem .75rem 0 0;font:inherit}.error{color:#a00}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

#: The page holds no session: every post carries the password itself, so there is nothing for another site to ride on.
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def form_page(*, action: str, user_code: str = "", username: str = "", error: str = "") -> str:
    """Return the form; all that came from outside is escaped."""
    said = f'<p class="error" role="alert">{escape(error)}</p>' if error else ""
    return _page(
        f"""<p>A device asks to act in your name. Approve only if you began this login yourself
and the code below is the one it shows.</p>{said}
<form method="post" action="{escape(action, quote=True)}" autocomplete="off">
<label>Code <input name="user_code" value="{escape(user_code, quote=True)}" maxlength="16" required></label>
<label>User name <input name="username" value="{escape(username, quote=True)}" maxlength="40"
 autocomplete="username" required></label>
<label>Password <input name="password" type="password" maxlength="256"
 autocomplete="current-password" required></label>
<button name="decision" value="approve">Approve</button><button name="decision" value="deny">Deny</button>
</form>"""
    )


def done_page(*, approved: bool, client_name: str) -> str:
    said = "is logged in now" if approved else "was refused"
    return _page(f"<p>{escape(client_name)} {said}. You may close this page.</p>")


def _page(body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Polyray login</title><style>{_STYLE}</style></head>
<body><h1>Polyray login</h1>
{body}
</body></html>
"""
