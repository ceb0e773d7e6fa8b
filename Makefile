# Every target calls one script; CI calls the same scripts.
.PHONY: setup demo test test-long check bench bench-external docs

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
docs:
	@scripts/docs
