"""Audits every model family in this environment, and compares each verdict with the evidence.

    .nox/mlx-lm-0.32.2/bin/python tools/audit_agreement.py

Prints how many families agree, the length of the longest screen, and the time of an audit. Exits
with 1 if a family disagrees, a screen is longer than allowed, or the audit imported mlx.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import mlx_patches
from mlx_patches.auditing import screen
from mlx_patches.auditing.audit import Audit
from mlx_patches.auditing.verdict import ModelVerdict, headline
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.evidence import store
from mlx_patches.evidence.words import family_result, verdict_of


def main() -> None:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mlx_patches", "audit", "-q"], check=False)
    seconds = time.perf_counter() - start
    plain = mlx_patches.audit()
    overview = {(one.distribution, one.family): one for one in plain.verdicts}
    longest = screen.rows(screen.lines(plain))
    installed = {one.name: one.version for one in plain.distributions}
    words: Counter[str] = Counter()
    differ = []
    for distribution in MODEL_PACKAGES.values():
        evidence = store.load_set(f"{distribution} {installed.get(distribution)}")
        for family in evidence["without"] if evidence else ():
            try:
                report = mlx_patches.audit(family)
            except MlxPatchesError as error:
                differ.append(f"{family}: {error}")
                continue
            longest = max(longest, screen.rows(screen.lines(report)))
            expected = verdict_of(family_result(store.pairs_of(evidence or {}, family)))
            own = [one for one in report.verdicts if one.distribution == distribution]
            if differs := disagrees(plain, overview.get((distribution, family)), report, own):
                differ.append(f"{distribution}:{family}: {differs}")
            elif [one.verdict for one in own if one.family == family] == [expected]:
                words[f"{expected}, exit {own[0].exit_code(report.here())}"] += 1
            else:
                differ.append(
                    f"{distribution}:{family}: {[one.verdict for one in own]}, {expected}"
                )
    agree, total = words.total(), words.total() + len(differ)
    print(f"{', '.join(map(str, plain.distributions))}: {agree} of {total} families agree")
    print("; ".join(f"{count} {word}" for word, count in sorted(words.items())))
    print(f"longest screen: {longest} lines; mlx-patches audit: {seconds:.2f} s")
    print("\n".join(differ))
    sys.exit(bool(differ) or longest > screen.HEIGHT or "mlx" in sys.modules)


def disagrees(
    plain: Audit, listed: ModelVerdict | None, report: Audit, own: Sequence[ModelVerdict]
) -> str:
    """Differences of the overview, the table of models or ``needs`` from a model's own audit."""
    for one in (one for one in own if listed and one.family == listed.family):
        now = one.as_dict(report.here())
        then = listed.as_dict(plain.here())
        if keys := [key for key in now if now[key] != then[key]]:
            return f"the overview has another {keys[0]}: {then[keys[0]]}, not {now[keys[0]]}"
        if headline(one, report.here()) != headline(listed, plain.here()):
            return "the overview has another headline"
        needed = {need.patch for need in mlx_patches.needs(one.family)}
        table = {*plain.models.get(one.family, {}).get(one.distribution, ())}
        if not {*one.patches} <= needed or (one.result and table != {*one.patches}):
            return f"needs: {sorted(needed)}; table: {sorted(table)}; audit: {sorted(one.patches)}"
    return ""


if __name__ == "__main__":
    main()
