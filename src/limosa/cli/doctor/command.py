"""Is something wrong? `limosa doctor` checks, and says what to do."""

import typer

from limosa.admin.overview import look
from limosa.cli.doctor.checks import Finding, examine
from limosa.cli.shared.options import Target, of_cluster
from limosa.cli.shared.terminal import print_json, print_table


@of_cluster
def doctor(target: Target) -> None:
    """Check the cluster, and say what to do about what is wrong.

    Exit code: 0 no problem (there may be warnings), 1 a problem.

    \b
    Examples:
      limosa doctor
      limosa doctor --json
    """
    with target.operate() as connection:
        findings = examine(look(connection))
    problems = sum(finding.verdict == "problem" for finding in findings)
    if target.as_json:
        print_json({"problems": problems, "checks": findings})
    else:
        print_table(("check", "verdict", "what"), [_row(finding) for finding in findings])
    if problems:
        raise typer.Exit(1)


def _row(finding: Finding) -> tuple[str, str, str]:
    verdict = finding.verdict if finding.verdict == "ok" else finding.verdict.upper()
    advice = f" → {finding.advice}" if finding.advice else ""
    return (finding.check, verdict, finding.what + advice)
