"""The generator of the reference: sections of pages, made from the route table and the code; the
list of pages, llms.txt; and the check of the links of the built site (`site_links`).

A page marks the place of a section:

    <!-- generated: SECTION ARGUMENTS -->
    the text of the section
    <!-- end of generated -->

`make reference` writes the sections anew, and tests/docs/test_generate.py fails while a page is
stale. Everything outside of the marks is written by hand.
"""
