"""An observer of a run: claims nothing, is on no roster, and what its nodes say it puts together for people and Prometheus."""
