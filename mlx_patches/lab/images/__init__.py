"""The scenario ``reference-images``: whole models with images, compared with transformers.

``authors`` runs in a process with torch: transformers makes a tiny model of random weights, saves
it as a user's folder and computes every stage of some prompts with images. ``release`` loads the
folder with ``mlx_vlm.load`` in a process without torch, as users have it, and computes the same
stages. ``scenario`` compares them: pixels, token ids, vision tower, merged embeddings, logits.
``families.toml`` has the models and ``pictures`` the images. Needs the extra ``reference``.
"""
