# What the jobs took, and the results report: one HTML file that opens offline.
# Products: <results>/cost.tsv, <results>/report.html


rule summarise_cost:
    input:
        "<results>/wer.tsv",
        expand("<results>/align/{system}/train/statistics.json", system=recipe.systems),
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
            caption="../report/summarise_cost.rst",
            category="Cost",
        ),
    log:
        "<logs>/summarise_cost/cost.log",
    benchmark:
        "<benchmarks>/summarise_cost/cost.jsonl"
    localrule: True
    conda:
        "../../envs/report.yaml"
    threads: 1
    params:
        code=source_digest("latflow.report.costs"),
    message:
        "Collect what all jobs took"
    script:
        "../scripts/summarise_cost.py"


rule make_report:
    input:
        "<results>/wer.tsv",
        expand("<results>/align/{system}/train/statistics.json", system=recipe.systems),
        expand("<results>/nnet/{network}/log.jsonl", network=recipe.networks),
        expand("<results>/tune/{decoding}/sweep.tsv", decoding=recipe.decodings),
        expand("<results>/tune/{system}/beams.tsv", system=recipe.swept_systems),
        expand(
            "<results>/score/{decoding}/{split}/lattices.json",
            decoding=recipe.decodings,
            split=recipe.evaluation_sets,
        ),
        "<results>/cost.tsv",
    output:
        html=report(
            "<results>/report.html",
            caption="../report/make_report.rst",
            category="Report",
        ),
    log:
        "<logs>/make_report/report.log",
    benchmark:
        "<benchmarks>/make_report/report.jsonl"
    conda:
        "../../envs/report.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(30),
    params:
        config=dict(recipe.config),
        code=source_digest("latflow.report"),
    message:
        "Write the results report"
    script:
        "../scripts/make_report.py"
