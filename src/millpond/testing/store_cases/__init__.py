"""The cases of `exercise_store` by theme. Every public function of these modules is one case."""
