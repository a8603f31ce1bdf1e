"""Running all rules over a program and over text that may not even load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch_loom.ktir.checks import exchange, functions, views
from torch_loom.ktir.checks.context import CheckOptions, Context, Finding
from torch_loom.ktir.diagnostics import ERROR, WARNING, Diagnostic, KtirError, position_in
from torch_loom.ktir.structure import check_structure, op_name

if TYPE_CHECKING:
    from torch_loom.ktir.program import Program

Rule = Callable[[Context], Iterator[Finding]]

RULES: tuple[Rule, ...] = (*functions.RULES, *views.RULES, *exchange.RULES)


def check_program(program: Program, options: CheckOptions | None = None) -> list[Diagnostic]:
    """Everything there is to say about a loaded program, in the order of the text. Never raises."""
    options = options or CheckOptions()
    found = list(check_structure(program))
    found += _reading(program, options)
    if not any(d.severity == ERROR for d in found):
        for name in program.functions:
            context = Context(program, program.function(name), options)
            if context.function.is_declaration:
                continue
            for rule in RULES:
                findings = list(rule(context))
                found += [_diagnostic(program, name, f) for f in findings]
                if rule is functions.grids and any(f.severity == ERROR for f in findings):
                    break  # every other rule asks about the compute tiles of the grid
    return sorted(found, key=lambda d: (d.position.line, d.position.col) if d.position else (0, 0))


def _reading(program: Program, options: CheckOptions) -> list[Diagnostic]:
    """Notes of the parser: literals that round away, and under ``strict`` old spellings."""
    source = program.source
    found = []
    for span, code, message in source.warnings:
        place = position_in(source.text, source.file, span.start, span.end)
        found.append(Diagnostic(WARNING, code, message, place))
    if options.strict:
        for span, old, new in source.drift:
            place = position_in(source.text, source.file, span.start, span.end)
            found.append(Diagnostic(WARNING, "KT-S01", f"old spelling: {old}; write {new}", place))
    return found


def _diagnostic(program: Program, function: str, finding: Finding) -> Diagnostic:
    return Diagnostic(
        finding.severity,
        finding.code,
        finding.message,
        program.location(finding.op),
        function,
        op_name(finding.op),
    )


def check(
    text: str, file: str = "<text>", options: CheckOptions | None = None, **parse_options: object
) -> list[Diagnostic]:
    """Load text and check it; a text that does not load gives its diagnostics too."""
    from torch_loom.ktir.program import ParseOptions, parse

    try:
        program = parse(text, file, ParseOptions(**parse_options))  # type: ignore[arg-type]
    except KtirError as error:
        return list(error.diagnostics)
    return check_program(program, options)
