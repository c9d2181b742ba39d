"""Networks of pods when their server, its state or its node fails: what is cleaned up, and what is not ours."""
