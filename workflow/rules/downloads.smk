# Files that a recipe fetches: lexicons, language models.
# Products: the paths in the section `downloads` of the configuration.

for path, source in recipe.options.downloads.items():

    rule:
        name:
            f"download_{download_name(path)}"
        output:
            path=path,
        log:
            f"<logs>/download/{download_name(path)}.log",
        retries: 2
        localrule: True
        conda:
            "../../envs/corpus.yaml"
        params:
            url=source.url,
            # Without a digest: other code is no reason to fetch a file again.
            stage="latflow.corpus.download.fetch",
        message:
            f"Fetch {path}"
        script:
            "../scripts/run_stage.py"
