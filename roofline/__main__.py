"""`python3 -m roofline`: the command, where nothing is installed."""

from roofline.commands.cli import main

raise SystemExit(main())
