"""What the embedded models continue in the parity tests."""

PROMPTS = [
    "Once upon a time",
    "The capital of France is",
    "The sea was calm, and",
    "def fibonacci(n):\n",
    "Q: What is 17 + 25?\nA:",
    "In 1969, three astronauts",
    "Ingredients: 2 eggs, 100 g flour,",
    "Dear Sir or Madam,",
    "import numpy as np\n\nx =",
    "The opposite of hot is",
    "A list of five animals:\n1.",
    "Water boils at",
    "Le petit chat est",
    "{'name': 'Ada', 'born':",
    "She opened the door and saw",
    "Photosynthesis is the process by which",
    "To be, or not to be,",
    "SELECT name FROM users WHERE",
    "Monday, Tuesday, Wednesday,",
    "The three laws of robotics are",
]

_NOUNS = ["river", "mountain", "forest", "garden", "bridge", "castle", "market", "harbour", "island", "valley"]
_VERBS = ["crossed", "climbed", "painted", "measured", "described", "forgot"]
_PEOPLE = ["Anna", "Boris", "Chen", "Dalia", "Emil", "Farah", "Goran"]


def long_text(num_sentences: int) -> str:
    """Sentences that are all different, so that what lies far back is not told again nearby."""
    sentences = [
        f"On day {day} {_PEOPLE[day % 7]} {_VERBS[day % 6]} the {_NOUNS[day % 10]} of {_PEOPLE[(3 * day + 1) % 7]}."
        for day in range(1, num_sentences + 1)
    ]
    return " ".join(sentences) + " After all these days"
