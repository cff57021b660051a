"""Groups of the cluster's profile: what their jobs ask for, one behind the other."""

import re

import yaml

LIMIT = 120  # minutes


def test_groups_of_the_profile_fit_a_partition_of_two_hours(repository):
    """Times of jobs that follow each other in a group add up."""
    profile = yaml.safe_load((repository / "profiles/slurm/profile.yaml").read_text())
    minutes = {}
    for path in (repository / "workflow/rules").glob("*.smk"):
        for rule in re.split(r"(?m)^ *(?:use )?rule ", path.read_text())[1:]:
            head, _, body = rule.partition(":")
            base, _, name = head.removesuffix(" with").rpartition(" as ")
            asked = re.search(r"runtime=per_attempt\((\d+)\)", body)
            minutes[name] = int(asked[1]) if asked else minutes.get(base)
    groups = profile["groups"]
    for group in set(groups.values()):
        rules = [rule for rule, name in groups.items() if name == group]
        assert sum(minutes[rule] for rule in rules) <= LIMIT, group
