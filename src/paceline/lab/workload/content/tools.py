"""Tools and JSON schemas that requests of content `tools` and `structured` carry, and a sentence that needs each."""

from __future__ import annotations

from typing import Any, NamedTuple


class Form(NamedTuple):
    """A named JSON schema with a request that it answers."""

    name: str
    purpose: str
    asks: str
    schema: dict[str, Any]


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str, low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "description": description, "minimum": low, "maximum": high}


def _choice(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


TOOLS = (
    Form(
        "get_forecast",
        "Weather forecast for a place and a number of days.",
        "What will the weather be like in Bergen over the next three days?",
        _object(
            place=_text("town or region"), days=_number("days ahead", 1, 10), unit=_choice("celsius", "fahrenheit")
        ),
    ),
    Form(
        "book_table",
        "Books a table in a restaurant.",
        "Book a table for four at the Old Mill on Friday at seven in the evening.",
        _object(restaurant=_text("its name"), guests=_number("number of guests", 1, 20), time=_text("day and hour")),
    ),
    Form(
        "search_flights",
        "Finds flights between two airports on a date.",
        "Find me a morning flight from Lisbon to Oslo on the ninth of May.",
        _object(
            origin=_text("airport"), destination=_text("airport"), date=_text("day"), part=_choice("morning", "evening")
        ),
    ),
    Form(
        "convert_money",
        "Converts an amount from one currency to another.",
        "How many Swiss francs do I get for 250 euros?",
        _object(amount=_number("how much", 1, 1000000), source=_text("currency code"), target=_text("currency code")),
    ),
    Form(
        "create_task",
        "Adds a task to a list, with a priority.",
        "Remind me to send the report to Mira tomorrow; it is urgent.",
        _object(title=_text("what is to be done"), due=_text("when"), priority=_choice("low", "normal", "high")),
    ),
    Form(
        "run_query",
        "Runs a read-only query on a table of sales.",
        "How many orders came from Portugal in the last quarter?",
        _object(table=_text("name"), filter=_text("condition"), limit=_number("rows at most", 1, 1000)),
    ),
    Form(
        "set_light",
        "Sets a lamp in the house.",
        "Dim the lamp in the study to thirty percent and make it warm.",
        _object(
            room=_text("which room"), percent=_number("brightness", 0, 100), tone=_choice("warm", "neutral", "cold")
        ),
    ),
    Form(
        "translate",
        "Translates a text.",
        "Translate 'the bridge is closed' into Finnish.",
        _object(text=_text("what to translate"), language=_text("target language")),
    ),
)

SCHEMAS = (
    Form(
        "contact",
        "A person with an address.",
        "Extract the contact from this line: Ada Berg, baker, lives in Lund, aged 41.",
        _object(name=_text("full name"), job=_text("profession"), town=_text("where"), age=_number("years", 0, 130)),
    ),
    Form(
        "review",
        "A judgement of a product.",
        "Rate this review: the kettle is quick and quiet, but its lid came off in a week.",
        _object(verdict=_choice("good", "mixed", "bad"), score=_number("stars", 1, 5), reason=_text("one sentence")),
    ),
    Form(
        "event",
        "Something that takes place.",
        "Make a calendar entry: choir practice on Wednesday at 19:30 in the town hall, two hours.",
        _object(
            title=_text("what"),
            place=_text("where"),
            hour=_number("hour of start", 0, 23),
            minutes=_number("length", 5, 600),
        ),
    ),
    Form(
        "recipe",
        "A dish with its ingredients.",
        "Describe a simple tomato soup for two people as data.",
        _object(
            dish=_text("its name"),
            serves=_number("people", 1, 12),
            ingredients={"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 8},
        ),
    ),
    Form(
        "ticket",
        "A problem report for a support team.",
        "Classify this report: since the update the app closes when I open a photo.",
        _object(
            area=_choice("login", "payment", "crash", "other"), urgent={"type": "boolean"}, summary=_text("ten words")
        ),
    ),
    Form(
        "route",
        "A way from one place to another.",
        "Give the route from the station to the lake as data: left at the mill, then two kilometres north.",
        _object(
            steps={
                "type": "array",
                "items": _object(turn=_choice("left", "right", "straight"), metres=_number("how far", 1, 50000)),
                "minItems": 1,
                "maxItems": 6,
            }
        ),
    ),
)


def tool_body(form: Form) -> dict[str, Any]:
    """Fields of a chat request that offer all tools and ask for one of them."""
    offered = [
        {"type": "function", "function": {"name": t.name, "description": t.purpose, "parameters": t.schema}}
        for t in TOOLS
    ]
    return {"tools": offered, "tool_choice": {"type": "function", "function": {"name": form.name}}}


def schema_body(form: Form) -> dict[str, Any]:
    """Fields of a chat request whose answer must be JSON of this schema."""
    wanted = {"name": form.name, "description": form.purpose, "schema": form.schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}
