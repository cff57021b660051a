# Stages whose work several jobs share (`num_jobs`): parts of a set, and what joins them.
# Products: those of the stages; <results>/parts/ until they are joined.
# With one job a set, no rule asks for parts.


scattergather:
    decoding=recipe.options.num_jobs.decoding,
    alignment=recipe.options.num_jobs.alignment,
    extraction=recipe.options.num_jobs.extraction,


use rule decode_lattices as decode_lattices_part with:
    output:
        out_dir=temp(directory("<results>/parts/decode/{system}/{split}/{scatteritem}")),
    log:
        "<logs>/decode_lattices_part/{system}.{split}.{scatteritem}.log",
    benchmark:
        "<benchmarks>/decode_lattices_part/{system}.{split}.{scatteritem}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.plain_systems) or "none",
    message:
        "Decode part {wildcards.scatteritem} of {wildcards.split} with {wildcards.system}"


use rule decode_adapted as decode_adapted_part with:
    output:
        out_dir=temp(directory("<results>/parts/decode/{system}/{split}/{scatteritem}")),
    log:
        "<logs>/decode_adapted_part/{system}.{split}.{scatteritem}.log",
    benchmark:
        "<benchmarks>/decode_adapted_part/{system}.{split}.{scatteritem}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.adapted_systems) or "none",
    message:
        "Decode part {wildcards.scatteritem} of {wildcards.split} with {wildcards.system}, adapted to each speaker"


use rule decode_network as decode_network_part with:
    output:
        out_dir=temp(
            directory("<results>/parts/decode/{network}/{split}/{scatteritem}")
        ),
    log:
        "<logs>/decode_network_part/{network}.{split}.{scatteritem}.log",
    benchmark:
        "<benchmarks>/decode_network_part/{network}.{split}.{scatteritem}.jsonl"
    wildcard_constraints:
        network="|".join(SCORING_NETWORKS) or "none",
    message:
        "Decode part {wildcards.scatteritem} of {wildcards.split} with the network {wildcards.network}"


# Settings and code of the decoding itself are among the params: its parts are gone
# when they change, and cannot say so.
rule join_lattices:
    input:
        parts=gather.decoding(
            "<results>/parts/decode/{{system}}/{{split}}/{scatteritem}"
        ),
    output:
        lattices="<results>/decode/{system}/{split}/lattices.ark",
        ledger="<results>/decode/{system}/{split}/ledger.jsonl",
        summary="<results>/decode/{system}/{split}/decode.json",
    log:
        "<logs>/join_lattices/{system}.{split}.log",
    benchmark:
        "<benchmarks>/join_lattices/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_parts("decoding", [*recipe.plain_systems, *SCORING_NETWORKS]),
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(240),
    params:
        options=recipe.search_options,
        scores=lambda wildcards: system_of(wildcards).scores_options,
        max_skipped_fraction=skippable,
        stage=stage(
            "latflow.decode.joining.join_lattices",
            "latflow.decode.lattices.decode_lattices",
        ),
    message:
        "Join the lattices of {wildcards.system} on {wildcards.split}"
    script:
        "../scripts/run_stage.py"


use rule join_lattices as join_adapted_lattices with:
    output:
        lattices="<results>/decode/{system}/{split}/lattices.ark",
        transforms="<results>/decode/{system}/{split}/trans.ark",
        ledger="<results>/decode/{system}/{split}/ledger.jsonl",
        summary="<results>/decode/{system}/{split}/decode.json",
    log:
        "<logs>/join_adapted_lattices/{system}.{split}.log",
    benchmark:
        "<benchmarks>/join_adapted_lattices/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_parts("decoding", recipe.adapted_systems),
    params:
        adapt=recipe.options.decode.adapt.values(),
        stage=stage(
            "latflow.decode.joining.join_lattices",
            "latflow.decode.adapt.decode_adapted",
        ),


use rule align_frames as align_frames_part with:
    output:
        out_dir=temp(directory("<results>/parts/align/{system}/{split}/{scatteritem}")),
    log:
        "<logs>/align_frames_part/{system}.{split}.{scatteritem}.log",
    benchmark:
        "<benchmarks>/align_frames_part/{system}.{split}.{scatteritem}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.plain_systems) or "none",
    message:
        "Align part {wildcards.scatteritem} of {wildcards.split} with {wildcards.system}"


use rule align_adapted as align_adapted_part with:
    output:
        out_dir=temp(directory("<results>/parts/align/{system}/{split}/{scatteritem}")),
    log:
        "<logs>/align_adapted_part/{system}.{split}.{scatteritem}.log",
    benchmark:
        "<benchmarks>/align_adapted_part/{system}.{split}.{scatteritem}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.adapted_systems) or "none",
    message:
        "Align part {wildcards.scatteritem} of {wildcards.split} with {wildcards.system}, adapted to each speaker"


use rule align_network as align_network_part with:
    output:
        out_dir=temp(directory("<results>/parts/align/{network}/{split}/{scatteritem}")),
    log:
        "<logs>/align_network_part/{network}.{split}.{scatteritem}.log",
    benchmark:
        "<benchmarks>/align_network_part/{network}.{split}.{scatteritem}.jsonl"
    wildcard_constraints:
        network="|".join(recipe.networks) or "none",
    message:
        "Align part {wildcards.scatteritem} of {wildcards.split} with {wildcards.network}"


rule join_alignments:
    input:
        parts=gather.alignment(
            "<results>/parts/align/{{system}}/{{split}}/{scatteritem}"
        ),
        lang=lambda wildcards: system_of(wildcards).lexicon,
        model=lambda wildcards: system_of(wildcards).model,
    output:
        alignments="<results>/align/{system}/{split}/ali.ark",
        log_likes="<results>/align/{system}/{split}/log_likes/meta.json",
        ledger="<results>/align/{system}/{split}/ledger.jsonl",
        statistics="<results>/align/{system}/{split}/statistics.json",
    log:
        "<logs>/join_alignments/{system}.{split}.log",
    benchmark:
        "<benchmarks>/join_alignments/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_parts("alignment", recipe.plain_systems),
    conda:
        "../../envs/gmm.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        options=lambda wildcards: system_of(wildcards).align_options,
        graph=recipe.options.graph.values(),
        max_skipped_fraction=skippable,
        stage=stage(
            "latflow.decode.joining.join_alignments",
            "latflow.gmm.alignment.align_gmm",
        ),
    message:
        "Join the alignments of {wildcards.split} with {wildcards.system}"
    script:
        "../scripts/run_stage.py"


use rule join_alignments as join_adapted_alignments with:
    output:
        alignments="<results>/align/{system}/{split}/ali.ark",
        log_likes="<results>/align/{system}/{split}/log_likes/meta.json",
        transforms="<results>/align/{system}/{split}/trans.ark",
        ledger="<results>/align/{system}/{split}/ledger.jsonl",
        statistics="<results>/align/{system}/{split}/statistics.json",
    log:
        "<logs>/join_adapted_alignments/{system}.{split}.log",
    benchmark:
        "<benchmarks>/join_adapted_alignments/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_parts("alignment", recipe.adapted_systems),
    params:
        fmllr=recipe.options.gmm.align.fmllr.values(),


use rule join_alignments as join_network_alignments with:
    log:
        "<logs>/join_network_alignments/{system}.{split}.log",
    benchmark:
        "<benchmarks>/join_network_alignments/{system}.{split}.jsonl"
    wildcard_constraints:
        system=in_parts("alignment", recipe.networks),
    params:
        options=lambda wildcards: system_of(wildcards).align_options,
        scores=lambda wildcards: system_of(wildcards).scores_options,
        graph=lambda wildcards: system_of(wildcards).graph_options.values(),
        stage=stage(
            "latflow.decode.joining.join_alignments",
            "latflow.decode.align.align_network",
        ),


use rule extract_features as extract_features_part with:
    output:
        out_dir=temp(
            directory("<results>/parts/streams/{stream}/{split}/{scatteritem}")
        ),
    log:
        "<logs>/extract_features_part/{stream}.{split}.{scatteritem}.log",
    benchmark:
        "<benchmarks>/extract_features_part/{stream}.{split}.{scatteritem}.jsonl"
    wildcard_constraints:
        stream="|".join(recipe.extracted_streams(stored=True)),
    message:
        "Extract the features {wildcards.stream} of part {wildcards.scatteritem} of {wildcards.split}"


rule join_features:
    input:
        parts=gather.extraction(
            "<results>/parts/streams/{{stream}}/{{split}}/{scatteritem}"
        ),
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
    output:
        frames="<results>/streams/{stream}/features/{split}/frames.npy",
        statistics="<results>/streams/{stream}/features/{split}/statistics.npy",
        index="<results>/streams/{stream}/features/{split}/index.npz",
        meta="<results>/streams/{stream}/features/{split}/meta.json",
        ledger="<results>/streams/{stream}/features/{split}/ledger.jsonl",
    log:
        "<logs>/join_features/{stream}.{split}.log",
    benchmark:
        "<benchmarks>/join_features/{stream}.{split}.jsonl"
    wildcard_constraints:
        stream=in_parts("extraction", recipe.extracted_streams(stored=True)),
    conda:
        "../../envs/corpus.yaml"
    threads: 1
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(240),
    params:
        max_skipped_fraction=skippable,
        stage=stage("latflow.features.joining.join_features"),
    message:
        "Store the features {wildcards.stream} of {wildcards.split}"
    script:
        "../scripts/run_stage.py"
