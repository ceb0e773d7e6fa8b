# Every target calls one script; CI calls the same scripts.
.PHONY: setup demo test test-long check bench bench-external bench-peers docs

setup:
	@scripts/setup
demo:
	@scripts/demo
test:
	@scripts/test
test-long:
	@scripts/test --long
check:
	@scripts/check
bench:
	@scripts/bench
bench-external:
	@scripts/bench-external "$${DATA:?say where the data is: make bench-external DATA=FOLDER}"
bench-peers:
	@scripts/bench-peers $(ARGS)
docs:
	@scripts/docs
