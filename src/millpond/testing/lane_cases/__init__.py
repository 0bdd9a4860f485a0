"""The cases of `exercise_lane` by theme. Every public function of these modules is one case."""
