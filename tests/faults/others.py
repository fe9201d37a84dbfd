OTHERS = {}
