"""`python -m paceline.lab.mock`."""

from paceline.lab.mock.main import main

raise SystemExit(main())
