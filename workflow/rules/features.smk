# Acoustic features, and their normalised memory-mapped form for training and decoding.
# Products: <results>/features/<split>/cuts.jsonl.gz, <results>/frames/<split>/;
# the same below <results>/streams/<stream>/ for the features of networks, where
# those computed when they are read have a description in the place of their frames.


rule extract_features:
    input:
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
    output:
        cuts="<results>/features/{split}/cuts.jsonl.gz",
        ledger="<results>/features/{split}/ledger.jsonl",
        storage=directory("<results>/features/{split}/storage"),
    log:
        "<logs>/extract_features/{split}.log",
    benchmark:
        "<benchmarks>/extract_features/{split}.jsonl"
    conda:
        "../../envs/corpus.yaml"
    threads: 16
    resources:
        mem_mb=growing(4000),
        runtime=growing(240),
    params:
        options=recipe.extraction_options(),
        max_skipped_fraction=recipe.max_skipped_fraction,
        code=source_digest("latflow.features.extract"),
    message:
        "Extract features of {wildcards.split}"
    script:
        "../scripts/extract_features.py"


rule normalise_features:
    input:
        cuts="<results>/features/{split}/cuts.jsonl.gz",
    output:
        frames="<results>/frames/{split}/frames.npy",
        index="<results>/frames/{split}/index.npz",
        meta="<results>/frames/{split}/meta.json",
    log:
        "<logs>/normalise_features/{split}.log",
    benchmark:
        "<benchmarks>/normalise_features/{split}.jsonl"
    conda:
        "../../envs/corpus.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(120),
    params:
        options=recipe.normalisation_options(),
        code=source_digest("latflow.features.extract"),
    message:
        "Normalise the features of {wildcards.split}"
    script:
        "../scripts/normalise_features.py"


use rule extract_features as extract_stream with:
    output:
        cuts="<results>/streams/{stream}/features/{split}/cuts.jsonl.gz",
        ledger="<results>/streams/{stream}/features/{split}/ledger.jsonl",
        storage=directory("<results>/streams/{stream}/features/{split}/storage"),
    log:
        "<logs>/extract_stream/{stream}.{split}.log",
    benchmark:
        "<benchmarks>/extract_stream/{stream}.{split}.jsonl"
    wildcard_constraints:
        stream="|".join(recipe.streams_of(stored=True)) or "none",
    params:
        options=lambda wildcards: recipe.stream_extraction_options(wildcards.stream),
        max_skipped_fraction=recipe.max_skipped_fraction,
        code=source_digest("latflow.features.extract"),
    message:
        "Extract the features {wildcards.stream} of {wildcards.split}"


use rule normalise_features as normalise_stream with:
    input:
        cuts="<results>/streams/{stream}/features/{split}/cuts.jsonl.gz",
    output:
        frames="<results>/streams/{stream}/frames/{split}/frames.npy",
        index="<results>/streams/{stream}/frames/{split}/index.npz",
        meta="<results>/streams/{stream}/frames/{split}/meta.json",
    log:
        "<logs>/normalise_stream/{stream}.{split}.log",
    benchmark:
        "<benchmarks>/normalise_stream/{stream}.{split}.jsonl"
    wildcard_constraints:
        stream="|".join(recipe.streams_of(stored=True)) or "none",
    params:
        options=lambda wildcards: recipe.stream_normalisation_options(wildcards.stream),
        code=source_digest("latflow.features.extract"),
    message:
        "Normalise the features {wildcards.stream} of {wildcards.split}"


rule describe_stream:
    input:
        cuts="<results>/corpus/{split}/cuts.jsonl.gz",
    output:
        cuts="<results>/streams/{stream}/frames/{split}/cuts.jsonl",
        index="<results>/streams/{stream}/frames/{split}/index.npz",
        meta="<results>/streams/{stream}/frames/{split}/meta.json",
        ledger="<results>/streams/{stream}/frames/{split}/ledger.jsonl",
    log:
        "<logs>/describe_stream/{stream}.{split}.log",
    benchmark:
        "<benchmarks>/describe_stream/{stream}.{split}.jsonl"
    wildcard_constraints:
        stream="|".join(recipe.streams_of(stored=False)) or "none",
    conda:
        "../../envs/corpus.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(120),
    params:
        options=lambda wildcards: recipe.live_stream_options(wildcards.stream),
        max_skipped_fraction=recipe.max_skipped_fraction,
        code=source_digest("latflow.features.live"),
    message:
        "Describe the features {wildcards.stream} of {wildcards.split}, to be computed when read"
    script:
        "../scripts/describe_stream.py"


rule adapt_frames:
    input:
        frames="<results>/frames/{split}/meta.json",
        model="<results>/gmm/{system}/final.mdl",
        transforms=transforms_of_split,
    output:
        frames="<results>/streams/{system}/frames/{split}/frames.npy",
        index="<results>/streams/{system}/frames/{split}/index.npz",
        meta="<results>/streams/{system}/frames/{split}/meta.json",
    log:
        "<logs>/adapt_frames/{system}.{split}.log",
    benchmark:
        "<benchmarks>/adapt_frames/{system}.{split}.jsonl"
    wildcard_constraints:
        system="|".join(recipe.systems),
    conda:
        "../../envs/gmm.yaml"
    threads: 4
    resources:
        mem_mb=growing(4000),
        runtime=growing(120),
    params:
        code=source_digest("latflow.gmm.adapted_frames"),
    message:
        "Store the features of {wildcards.system} for {wildcards.split}"
    script:
        "../scripts/adapt_frames.py"
