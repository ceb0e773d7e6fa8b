"""What the requests of a plan say: texts of an exact number of tokens, the same on every rendering.

    counter       who counts tokens: the server, words, or an estimate
    pieces        sentences and words with measured counts, joined to a length
    render        a planned request becomes a prompt
    tools         tools and JSON schemas, with requests that need them
    prompt_files  a user's own prompts
    words         the vocabulary; sentences.txt beside it holds the sentences

Texts are ours; none is fetched. Never sends anything itself: a `TokenCounter` does. May import the workload's spec and
draws; no other lab part.
"""

from paceline.lab.workload.content.counter import EstimateCounter, TokenCounter, WordCounter
from paceline.lab.workload.content.render import Content

__all__ = ["Content", "EstimateCounter", "TokenCounter", "WordCounter"]
