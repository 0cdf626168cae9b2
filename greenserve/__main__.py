from greenserve.cli import main

main()
