"""The table of `konsil methods`."""

from __future__ import annotations

from rich.table import Table

from konsil.method import Method, all_methods


def methods_table() -> Table:
    """Name, paper, who answers, what the server needs, settings with their defaults."""
    table = Table("method", "what it is", "paper", "models", "settings")
    for name, cls in all_methods().items():
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        roles = [*cls.shared_roles, *cls.private_roles, *(["super"] if cls.super_model else [])]
        table.add_row(name, summary, cls.paper, ", ".join(roles), settings(cls))
    return table


def settings(cls: type[Method]) -> str:
    """`key: default`, one a line."""
    fields = cls.Settings.model_fields
    return "\n".join(f"{f.alias or name}: {f.default}" for name, f in fields.items()) or "-"
