"""The experiments that come with raygpu, and its benchmarks. raygpu itself never imports them."""
