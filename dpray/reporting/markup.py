"""HTML that cannot be written unescaped by mistake: text is escaped, only `Html` is not."""

from __future__ import annotations

import html

_WITHOUT_END = frozenset({"img", "meta", "br"})


class Html(str):
    """Finished markup. Made by `tag` and `join`, and by hand only from constants."""


def text(value: object) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(*parts: object) -> Html:
    return Html("".join(text(part) for part in parts))


def tag(name: str, /, *inside: object, **attributes: object) -> Html:
    """An element. `class_` is the attribute class, `data_label` the attribute data-label."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _WITHOUT_END:
        return Html(f"<{name}{words}>")
    return Html(f"<{name}{words}>{join(*inside)}</{name}>")
