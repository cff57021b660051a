# Decoding to lattices, and the choice of scales on the dev set.
# Products: <results>/decode/<system>/<split>/lattices.ark, <results>/tune/<system>/scales.json
# Networks that give scores of frames; those with a decoder of their own do not.
SCORING_NETWORKS = recipe.networks_of("ce", "ctc", "lfmmi", "sequence")


rule decode_lattices:
    input:
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        graph="<results>/graph/{system}/HCLG.fst",
        model="<results>/gmm/{system}/final.mdl",
        lang=lambda wildcards: system_of(wildcards).words,
    output:
        lattices="<results>/decode/{system}/{split}/lattices.ark",
        ledger="<results>/decode/{system}/{split}/ledger.jsonl",
        summary="<results>/decode/{system}/{split}/decode.json",
    log:
        "<logs>/decode_lattices/{system}.{split}.log",
    benchmark:
        "<benchmarks>/decode_lattices/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_one_job("decoding", recipe.plain_systems),
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
    params:
        options=recipe.search_options,
        max_skipped_fraction=skippable,
        stage=stage("latflow.decode.lattices.decode_lattices"),
    message:
        "Decode {wildcards.split} with {wildcards.system}"
    script:
        "../scripts/run_stage.py"


use rule decode_lattices as decode_adapted with:
    input:
        frames="<results>/streams/gmm/frames/{split}/meta.json",
        graph="<results>/graph/{system}/HCLG.fst",
        model="<results>/gmm/{system}/final.mdl",
        alignment_model="<results>/gmm/{system}/final.alimdl",
        lang=lambda wildcards: system_of(wildcards).words,
    output:
        lattices="<results>/decode/{system}/{split}/lattices.ark",
        transforms="<results>/decode/{system}/{split}/trans.ark",
        ledger="<results>/decode/{system}/{split}/ledger.jsonl",
        summary="<results>/decode/{system}/{split}/decode.json",
    log:
        "<logs>/decode_adapted/{system}.{split}.log",
    benchmark:
        "<benchmarks>/decode_adapted/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_one_job("decoding", recipe.adapted_systems),
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(960),
    params:
        adapt=recipe.options.decode.adapt.values(),
        stage=stage("latflow.decode.adapt.decode_adapted"),
    message:
        "Decode {wildcards.split} with {wildcards.system}, adapted to each speaker"


use rule decode_lattices as decode_network with:
    input:
        frames=lambda wildcards: system_of(wildcards).frames.of(wildcards.split),
        graph=lambda wildcards: system_of(wildcards).graph,
        model="<results>/nnet/{network}/final.mdl",
        network="<results>/nnet/{network}/weights.safetensors",
        lang=lambda wildcards: system_of(wildcards).words,
    output:
        lattices="<results>/decode/{network}/{split}/lattices.ark",
        ledger="<results>/decode/{network}/{split}/ledger.jsonl",
        summary="<results>/decode/{network}/{split}/decode.json",
    log:
        "<logs>/decode_network/{network}.{split}.log",
    benchmark:
        "<benchmarks>/decode_network/{network}.{split}.jsonl"
    wildcard_constraints:
        network=in_one_job("decoding", SCORING_NETWORKS),
    conda:
        TORCH
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
        gpu=DECODING_GPUS,
    params:
        scores=lambda wildcards: system_of(wildcards).scores_options,
        free_scores=device_of_scores,
    message:
        "Decode {wildcards.split} with the network {wildcards.network}"


use rule decode_lattices as decode_attention with:
    input:
        frames=lambda wildcards: system_of(wildcards).frames.of(wildcards.split),
        grammar="<results>/lm/G.fst",
        model="<results>/nnet/{network}/final.mdl",
        network="<results>/nnet/{network}/weights.safetensors",
        lang=lambda wildcards: system_of(wildcards).words,
    output:
        lattices="<results>/decode/{network}/{split}/lattices.ark",
        ledger="<results>/decode/{network}/{split}/ledger.jsonl",
        summary="<results>/decode/{network}/{split}/decode.json",
    log:
        "<logs>/decode_attention/{network}.{split}.log",
    benchmark:
        "<benchmarks>/decode_attention/{network}.{split}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.networks_of("attention")) or "none",
    conda:
        TORCH
    resources:
        mem_mb=per_attempt(16000),
        runtime=per_attempt(480),
        gpu=DECODING_GPUS,
    params:
        options=lambda wildcards: system_of(wildcards).options.decode.values(),
        device=device_of,
        stage=stage("latflow.decode.attention.decode_attention"),
    message:
        "Decode {wildcards.split} with the decoder {wildcards.network}"


rule rescore_lattices:
    input:
        lattices="<results>/decode/{system}/{split}/lattices.ark",
        grammar="<results>/lm/G.fst",
        arpa="<results>/lm/{lm}.arpa",
        lang=lambda wildcards: system_of(wildcards).words,
    output:
        lattices="<results>/decode/{system}.{lm}/{split}/lattices.ark",
        ledger="<results>/decode/{system}.{lm}/{split}/ledger.jsonl",
        summary="<results>/decode/{system}.{lm}/{split}/rescore.json",
    log:
        "<logs>/rescore_lattices/{system}.{lm}.{split}.log",
    benchmark:
        "<benchmarks>/rescore_lattices/{system}.{lm}.{split}.jsonl"
    wildcard_constraints:
        lm="|".join(recipe.language.ngram_models),
    conda:
        "../../envs/gmm.yaml"
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
    params:
        beam=lambda wildcards: recipe.rescorings[wildcards.lm].beam,
        acoustic_scale=recipe.options.decode.acoustic_scale,
        max_skipped_fraction=skippable,
        stage=stage("latflow.decode.rescore.rescore_lattices"),
    message:
        "Rescore the lattices of {wildcards.system} on {wildcards.split} with {wildcards.lm}"
    script:
        "../scripts/run_stage.py"


rule rescore_n_best:
    input:
        lattices="<results>/decode/{system}/{split}/lattices.ark",
        grammar="<results>/lm/G.fst",
        network="<results>/lm/{lm}/weights.safetensors",
        mixture="<results>/lm/{lm}.mixture.json",
        scales="<results>/tune/{system}/scales.json",
        lang=lambda wildcards: system_of(wildcards).words,
    output:
        lattices="<results>/decode/{system}.{lm}/{split}/lattices.ark",
        ledger="<results>/decode/{system}.{lm}/{split}/ledger.jsonl",
        summary="<results>/decode/{system}.{lm}/{split}/rescore.json",
    log:
        "<logs>/rescore_n_best/{system}.{lm}.{split}.log",
    benchmark:
        "<benchmarks>/rescore_n_best/{system}.{lm}.{split}.jsonl"
    wildcard_constraints:
        lm="|".join(recipe.language.neural_models) or "none",
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(240),
        gpu=DECODING_GPUS,
    params:
        n_best=lambda wildcards: recipe.language.models[wildcards.lm].neural.n_best,
        beam=lambda wildcards: recipe.rescorings[wildcards.lm].beam,
        device=device_of,
        max_skipped_fraction=skippable,
        stage=stage("latflow.decode.rescore_n_best.rescore_n_best"),
    message:
        "Rescore the n best of {wildcards.system} on {wildcards.split} with {wildcards.lm}"
    script:
        "../scripts/run_stage.py"


rule sweep_beams:
    input:
        frames=lambda wildcards: system_of(wildcards).frames.of("dev"),
        graph=lambda wildcards: system_of(wildcards).graph,
        model=lambda wildcards: system_of(wildcards).model,
        lang=lambda wildcards: system_of(wildcards).words,
        lattices="<results>/decode/{system}/dev/lattices.ark",
        scales="<results>/tune/{system}/scales.json",
    output:
        sweep="<results>/tune/{system}/beams.tsv",
    log:
        "<logs>/sweep_beams/{system}.log",
    benchmark:
        "<benchmarks>/sweep_beams/{system}.jsonl"
    conda:
        TORCH
    threads: 16
    resources:
        mem_mb=per_attempt(8000),
        runtime=per_attempt(480),
        gpu=gpus_of_sweep,
    params:
        options=recipe.search_options,
        beams=recipe.options.decode.beam_sweep,
        score=recipe.comparison_options,
        scores=lambda wildcards: system_of(wildcards).scores_options,
        free_scores=device_of_scores,
        stage=stage("latflow.decode.lattices.sweep_beams"),
    message:
        "Decode dev with {wildcards.system} at several beams"
    script:
        "../scripts/run_stage.py"


rule tune_scales:
    input:
        lattices="<results>/decode/{decoding}/dev/lattices.ark",
        cuts="<results>/corpus/dev/cuts.jsonl.gz",
        features=scored_features_of,
        lang=lambda wildcards: system_of(wildcards).words,
    output:
        sweep="<results>/tune/{decoding}/sweep.tsv",
        scales="<results>/tune/{decoding}/scales.json",
    log:
        "<logs>/tune_scales/{decoding}.log",
    benchmark:
        "<benchmarks>/tune_scales/{decoding}.jsonl"
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(60),
    params:
        options=lambda wildcards: recipe.tune_options(wildcards.decoding),
        comparison=recipe.comparison_options,
        stage=stage("latflow.scoring.tune.tune_scales"),
    message:
        "Choose language model weight and insertion penalty of {wildcards.decoding} on dev"
    script:
        "../scripts/run_stage.py"
