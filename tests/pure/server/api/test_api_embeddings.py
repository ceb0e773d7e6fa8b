"""/v1/embeddings, which is not there: what is asked for is checked first, and then refused with the reason."""

import pytest
from tests.fakes.api_server import MODEL, api_server, run


@pytest.mark.parametrize("given", ["text", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_a_right_request_is_a_501_that_says_why(given):
    async def body():
        async with api_server() as server:
            response = await server.post(
                "/v1/embeddings", {"model": MODEL, "input": given, "encoding_format": "base64"}
            )
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (501, "not_implemented", None)
            assert "no pooled output" in error["message"]
            assert response.headers["x-should-retry"] == "false"
            assert server.records == []

    run(body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [1, True]}, "input"),
        ({"input": [[1], "a", [0.5]]}, "input[2]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"inputs": "a"}, "inputs"),
    ],
)
def test_a_wrong_request_is_a_400_that_names_it(fields, param):
    async def body():
        async with api_server() as server:
            response = await server.post("/v1/embeddings", {"input": "a", **fields})
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
            unknown = await server.post("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"})
            assert unknown.status_code == 404

    run(body)
