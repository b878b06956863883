"""Endpoints: local and served envs and models as ports (layer 6).

What is here is for all of them and knows none of them: threads, processes of our own and the names
by which they find things, targets, and what is told of a failure. The rooms below hold the rest:
`envs` and `models` of this process, `clients` of served ones, and `servers`.
"""
