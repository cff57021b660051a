# Decoding to lattices, and the choice of scales on the dev set.
# Products: <results>/decode/<system>/<split>/lattices.ark, <results>/tune/<system>/scales.json


rule decode_lattices:
    input:
        frames="<results>/frames/{split}/meta.json",
        graph="<results>/graph/{system}/HCLG.fst",
        model="<results>/gmm/{system}/final.mdl",
        words="<results>/lang/words.txt",
    output:
        lattices="<results>/decode/{system}/{split}/lattices.ark",
        ledger="<results>/decode/{system}/{split}/ledger.jsonl",
        summary="<results>/decode/{system}/{split}/decode.json",
    log:
        "<logs>/decode_lattices/{system}.{split}.log",
    benchmark:
        "<benchmarks>/decode_lattices/{system}.{split}.jsonl"
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
        runtime=480,
    params:
        options=recipe.decode_options(),
        max_skipped_fraction=recipe.max_skipped_fraction,
        code=source_digest("latflow.decode.run"),
    message:
        "Decode {wildcards.split} with {wildcards.system}"
    script:
        "../scripts/decode_lattices.py"


rule tune_scales:
    input:
        lattices="<results>/decode/{system}/dev/lattices.ark",
        cuts="<results>/features/dev/cuts.jsonl.gz",
        words="<results>/lang/words.txt",
    output:
        sweep="<results>/tune/{system}/sweep.tsv",
        scales="<results>/tune/{system}/scales.json",
    log:
        "<logs>/tune_scales/{system}.log",
    benchmark:
        "<benchmarks>/tune_scales/{system}.jsonl"
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        options=recipe.tune_options(),
        code=source_digest("latflow.decode.tune"),
    message:
        "Choose language model weight and insertion penalty of {wildcards.system} on dev"
    script:
        "../scripts/tune_scales.py"
