"""Cases from public reports, as tests: the runner, how it judges, and the case files."""
