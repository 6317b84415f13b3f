"""Published training and evaluation recipes, in the parts that are a loader's, by family; see docs/guide/recipes.md."""
