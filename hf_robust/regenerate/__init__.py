"""Making new benchmarks: stages, recipes, and what each recipe is made of."""
