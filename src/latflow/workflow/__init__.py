"""From a recipe to the jobs of a run: targets, parameters, stage runner, records."""
