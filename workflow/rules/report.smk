# What the jobs took, and the results report: one HTML file that opens offline.
# Products: <results>/cost.tsv, <results>/report.html, <results>/RESULTS.md,
# <results>/slices.tsv


rule summarize_cost:
    input:
        "<results>/wer.tsv",
        expand("<results>/align/{system}/train/statistics.json", system=recipe.gmms),
        expand("<results>/nnet/{network}/log.jsonl", network=recipe.networks),
        expand("<results>/tune/{decoding}/sweep.tsv", decoding=recipe.decodings),
        expand("<results>/tune/{system}/beams.tsv", system=recipe.swept_systems),
        expand(
            "<results>/score/{decoding}/{split}/lattices.json",
            decoding=recipe.decodings,
            split=recipe.evaluation_sets,
        ),
    output:
        table=report(
            "<results>/cost.tsv",
            caption="../report/summarize_cost.rst",
            category="Cost",
        ),
    log:
        "<logs>/summarize_cost/cost.log",
    benchmark:
        "<benchmarks>/summarize_cost/cost.jsonl"
    localrule: True
    conda:
        "../../envs/report.yaml"
    threads: 1
    params:
        results_dir=subpath(output.table, parent=True),
        stage=stage("latflow.report.costs.summarize_costs"),
    message:
        "Collect what all jobs took"
    script:
        "../scripts/run_stage.py"


rule make_report:
    input:
        "<results>/wer.tsv",
        expand("<results>/align/{system}/train/statistics.json", system=recipe.gmms),
        expand("<results>/nnet/{network}/log.jsonl", network=recipe.networks),
        expand("<results>/tune/{decoding}/sweep.tsv", decoding=recipe.decodings),
        expand("<results>/tune/{system}/beams.tsv", system=recipe.swept_systems),
        expand(
            "<results>/score/{decoding}/{split}/lattices.json",
            decoding=recipe.decodings,
            split=recipe.evaluation_sets,
        ),
        expand(
            "<results>/score/{decoding}/{split}/hyp.txt",
            decoding=recipe.decodings,
            split=recipe.untranscribed_sets,
        ),
        "<results>/cost.tsv",
        expand(
            "<results>/suspects/{split}/suspects.tsv",
            split=recipe.options.suspects.sets,
        ),
        expand(
            "<results>/package/{system}/package.json",
            system=recipe.options.package.systems,
        ),
        expand(
            "<results>/served/{system}/{split}/wer.json",
            system=recipe.served_systems,
            split=recipe.served_sets,
        ),
        expand(
            "<results>/capacity/{system}.tsv", system=recipe.options.capacity.systems
        ),
    output:
        html=report(
            "<results>/report.html",
            caption="../report/make_report.rst",
            category="Report",
        ),
        markdown="<results>/RESULTS.md",
        slices="<results>/slices.tsv",
    log:
        "<logs>/make_report/report.log",
    benchmark:
        "<benchmarks>/make_report/report.jsonl"
    conda:
        "../../envs/report.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(30),
    params:
        results_dir=subpath(output.html, parent=True),
        config=recipe.options.split()[0],
        free_config=free_config,
        stage=stage("latflow.report.build.make_report"),
    message:
        "Write the results report"
    script:
        "../scripts/run_stage.py"
