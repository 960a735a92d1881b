from adaptree.cli import main

raise SystemExit(main())
