"""Checks the local links of the built documentation: a part of `make docs`.

Sphinx checks its own roles. This follows all links of the pages, to other
pages, to anchors in them and to files, as a reader's browser does. The last
line tells how many links there were and how many lead nowhere.

"""
import os
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), set()
        with open(path, encoding='utf-8') as file_:
            self.feed(file_.read())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ('href', 'src') and value:
                self.links.add(value)
            elif name in ('id', 'name') and value:
                self.anchors.add(value)


def main(top):
    pages = {}
    for folder, _, names in os.walk(top):
        for name in names:
            if name.endswith('.html'):
                path = os.path.realpath(os.path.join(folder, name))
                pages[path] = Page(path)
    followed = broken = 0
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            where, anchor = urldefrag(link)
            where = unquote(where.split('?')[0])
            target = os.path.realpath(
                os.path.join(os.path.dirname(path), where)) if where else path
            if not os.path.exists(target) or anchor and (
                    target in pages and
                    unquote(anchor) not in pages[target].anchors):
                print('{}: {} leads nowhere'.format(
                    os.path.relpath(path, top), link))
                broken += 1
    print('{} local links on {} pages, {} lead nowhere'.format(
        followed, len(pages), broken))
    return 1 if broken or not followed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1]))
