"""The mails of the variants: the campaign's template with another subject, another template, and links that say the variant.

Each is a template of its own with an immutable version, published when the campaign is approved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mailpipe import template
from mailpipe.experiment import utm
from mailpipe.experiment.spec import Experiment, Variant
from mailpipe.template import Template
from mailpipe.template_check import TAG, check_tags


def of(folder: Path, experiment: Experiment, *, campaign: str, base: str) -> dict[str, Template]:
    """The mail of each variant, by its name. `folder` holds the templates, `base` is the campaign's.

    Raises:
        TemplateError: a template does not exist, or a subject cannot be used; the text names the variant.
    """
    return {variant.name: _of(folder, experiment, variant, campaign, base) for variant in experiment.variants}


def unmarked(letters: dict[str, Template]) -> list[str]:
    """Variables whose links cannot say the variant."""
    return sorted({name for letter in letters.values() for name in utm.unmarked(letter.html)})


def _of(folder: Path, experiment: Experiment, variant: Variant, campaign: str, base: str) -> Template:
    made = template.load(folder, variant.template or base)
    if variant.subject is not None:
        made = _with_subject(made, variant, campaign)
    if experiment.links is not None:
        marks = utm.marks(experiment.links.source, experiment.links.medium, campaign, variant.name)
        made = replace(made, html=utm.mark_html(made.html, marks), text=utm.mark_text(made.text, marks))
    return made


def _with_subject(made: Template, variant: Variant, campaign: str) -> Template:
    assert variant.subject is not None
    where = Path(f"campaign {campaign}: experiment: variant {variant.name}: subject")
    template.check_subject(where, variant.subject)
    check_tags(where, variant.subject, {one.name: one.html for one in made.variables.values()})
    changed = replace(made, subject=variant.subject)
    used = {
        match[1] or match[2] for part in (changed.subject, changed.html, changed.text) for match in TAG.finditer(part)
    }
    # Only the other subject had it: nobody shall be left without a mail for want of it.
    return replace(changed, variables={name: one for name, one in made.variables.items() if name in used})
