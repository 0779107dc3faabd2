"""The API's own page: every operation, from its OpenAPI document, in plain HTML.

No script and nothing from another host: whoever reads it may hold a token.
"""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}code{font-size:.95em}"


#: What the page needs beyond the API's own policy of nothing at all.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def page(document: dict[str, Any]) -> str:
    """Return `document` (OpenAPI) as a page."""
    parts = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(method, path, operation))
    info = document["info"]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])} API</title>"
        f"<style>{_STYLE}</style><h1>{escape(info['title'])} API</h1><p>{escape(info.get('summary', ''))}</p>"
        "<p>Send <code>Authorization: Bearer TOKEN</code> (<code>polyray token</code> prints one)."
        " Refusals are problems (RFC 9457) with a code, the field and the way out."
        " The same as a document: <a href=/openapi.json>openapi.json</a>.</p>" + "".join(parts) + "</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = "".join(
        f"<li><code>{escape(p['name'])}</code> ({escape(p['in'])}{', required' if p.get('required') else ''})"
        f" {escape(p.get('description', ''))}</li>"
        for p in operation.get("parameters", ())
    )
    action = operation.get("x-polyray-action", "")
    said = operation.get("description") or operation.get("summary", "")
    return (
        f"<h3><code>{escape(method.upper())} {escape(path)}</code></h3>"
        f"<p>{escape(said)} <em>({escape(action)})</em></p>" + (f"<ul>{parameters}</ul>" if parameters else "")
    )
