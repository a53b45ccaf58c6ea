

def _cubicle_main():
    import sys
    status = _cubicle_run(sys.argv[1])
    if status:
        sys.exit(status)


_cubicle_main()
