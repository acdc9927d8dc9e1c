"""Is something wrong with the cluster? `limosa doctor` checks, and advises what to do."""

import typer

from limosa.admin.overview import look
from limosa.cli.doctor.checks import CheckResult, examine
from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.terminal import print_json, print_table


@with_groups
def doctor(target: ClusterOptions) -> None:
    """Check the cluster, and advise how to solve its problems.

    The exit code is 1 if there is a problem, and 0 if there are only warnings.

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
        print_table(("check", "verdict", "finding"), [_row(finding) for finding in findings])
    if problems:
        raise typer.Exit(1)


def _row(finding: CheckResult) -> tuple[str, str, str]:
    verdict = finding.verdict if finding.verdict == "ok" else finding.verdict.upper()
    advice = f" → {finding.advice}" if finding.advice else ""
    return (finding.check, verdict, finding.what + advice)
