from hypothesis import given
from hypothesis import strategies as st

from paceline.lab.mock.prefix_cache import PrefixCache
from paceline.lab.mock.words import chat_words, id_words, message_text, word_id

WORDS = st.lists(st.sampled_from("abc"), max_size=30)


@given(st.lists(WORDS, max_size=8), WORDS, st.integers(1, 5))
def test_what_is_found_is_the_longest_run_of_blocks_seen_before(prompts, asked, size):
    cache = PrefixCache(size)
    for prompt in prompts:
        cache.add(prompt, "")
    whole = (max(len(asked) - 1, 0)) // size * size  # the last token is always computed
    shared = max((n for n in range(0, whole + 1, size) if any(p[:n] == asked[:n] for p in prompts)), default=0)
    assert cache.find(asked, "") == shared
    assert (cache.num_queried, cache.num_hit) == (len(asked), shared)


def test_salts_share_nothing():
    cache = PrefixCache(2)
    cache.add(["a"] * 9, "one")
    assert cache.find(["a"] * 9, "two") == 0
    assert cache.find(["a"] * 9, "one") == 8


def test_the_least_recently_used_block_goes_first():
    cache = PrefixCache(1, max_blocks=2)
    cache.add(["a"], "")
    cache.add(["b"], "")
    assert cache.find(["a", "end"], "") == 1  # now the newest
    cache.add(["c"], "")
    assert len(cache) == 2
    assert cache.find(["b", "end"], "") == 0
    assert cache.find(["a", "end"], "") == 1
    cache.clear()
    assert cache.find(["a", "end"], "") == 0


def test_words_of_a_chat():
    parts = [{"type": "text", "text": "one two"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "3"}]
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert message_text(messages[0]).split() == ["one", "two", "3"]
    assert chat_words(messages, "", 1) == [
        "<|user|>", "one", "two", "3", "<|assistant|>", "f", '{"a":', "1}", "<|assistant|>",
    ]  # fmt: skip


@given(st.integers(0, 65_535))
def test_ids_and_words_are_the_same(i):
    assert [word_id(word) for word in id_words([i])] == [i]


@given(st.text(min_size=1))
def test_every_word_has_an_id_within_the_vocabulary(word):
    assert 0 <= word_id(word) < 1 << 20
