"""The table of `konsil methods`."""

from __future__ import annotations

from rich.table import Table

from konsil.method import Method, all_methods


def methods_table() -> Table:
    """Name, who answers, and in words: what it is, its paper, its settings with their defaults."""
    table = Table("method", "models", "what it is, paper, settings", show_lines=True)
    for name, cls in all_methods().items():
        table.add_row(name, "\n".join(roles(cls)), description(cls))
    return table


def roles(cls: type[Method]) -> list[str]:
    """Whose answers the results will hold."""
    return [*cls.shared_roles, *cls.private_roles, *(["super"] if cls.super_model else [])]


def description(cls: type[Method]) -> str:
    """The first line of the docstring, the paper, and a line a setting."""
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    fields = cls.Settings.model_fields
    settings = [f"  {f.alias or n}: {f.description or f.default}" for n, f in fields.items()]
    return "\n".join([summary, f"[dim]{cls.paper}[/]", *settings])
