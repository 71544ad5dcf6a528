"""The site of these pages: Sphinx, MyST and furo over the repository as it is (cmake --build build --target docs).

The table of contents is SECTIONS: every page that readers get is in one of them, named or by a pattern. tests/docs/pages.py checks it
without Sphinx. A block of another language directly before one of C++ stands beside it: `python`, `c`, and `c++` for the C++ of others.
"""
import re
from fnmatch import fnmatchcase
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def _tutorial(names):
    return ["docs/tutorial/" + name for name in names.split()]


SECTIONS = {
    "Start": ["docs/start", "docs/ideas", "docs/cookbook", *_tutorial("install headers compile_cost"), "docs/launch"],
    "I come from": ["docs/from/*"],
    "Who, where, how, when": [*_tutorial("mesh layout comm schedule"), "docs/schedules",
                              *_tutorial("own_schedules own_schedule_training own_split describe choosing testing core tensor redco loss_expressions monoids")],
    "Ranks and machines": _tutorial("mpi_program mpi nccl launch_order cores actors flow place photonic"),
    "Kernels and devices": _tutorial("compute compute_precision attention_kernels backends kokkos kokkos_backend cuda cuda_backend cuda_products "
                                     "cuda_attention cuda_experts cuda_ranks cuda_training memory device_memory"),
    "Models": _tutorial("model own_layer own_model own_stage sharding experts families hugging_face safetensors tokenizers chat_templates adapters"),
    "Training": _tutorial("train zero determinism precision chunked_loss own_loop own_optimizer own_learning_rate ending saves stores from_pytorch data packing io "
                          "context documents branches skippipe atomization online privacy"),
    "Inference": _tutorial("infer cache sampling speculation pools elastic diffusion long_context infer_laws infer_precision model_runner serve "
                           "serve_in_a_program nano_batches experts_placement"),
    "Reinforcement learning": _tutorial("rl rl_systems rl_critic rl_memory rollouts objectives"),
    "Plans and observation": _tutorial("plan measured_plans plan_systems search scale observe diagnosis runbook"),
    "Errors": ["docs/errors/*"],
    "Published systems": ["docs/systems", "docs/bug_classes"],
    "Reference": ["docs/reference/*"],
    "Benchmarks": ["docs/benchmarks/*"],
    "Project": ["CHANGELOG", "CONTRIBUTING"],
}
ROOT = "README"  # the first page


def all_pages(repository=REPOSITORY):
    """The pages of the repository, without `.md`, in order."""
    found = [path.relative_to(repository).with_suffix("").as_posix() for path in sorted((repository / "docs").rglob("*.md"))]
    return [name for name in ("CHANGELOG", "CONTRIBUTING") if (repository / (name + ".md")).exists()] + found


def contents(pages, sections=None):
    """(pages of each section, mistakes): a page that no section names, one that two name, a name that is no page."""
    chosen, where, mistakes = {}, {}, []
    for title, patterns in (SECTIONS if sections is None else sections).items():
        chosen[title] = []
        for pattern in patterns:
            here = [page for page in pages if fnmatchcase(page, pattern)]
            here.sort(key=lambda page: not page.endswith("/index"))
            if not here:
                mistakes.append(f'docs/conf.py: section "{title}" names {pattern}.md, which is not there')
            for page in here:
                if page in where:
                    mistakes.append(f'{page}.md: sections "{where[page]}" and "{title}" of docs/conf.py both name it; a page has one')
                where.setdefault(page, title)
                chosen[title].append(page)
    mistakes += [f"{page}.md: no section of docs/conf.py names it" for page in pages if page not in where]
    return chosen, mistakes


# ---- Sphinx ---------------------------------------------------------------------------------------------------------
project = html_title = "heddle"
extensions = ["myst_parser"]
html_theme = "furo"
root_doc = ROOT
source_suffix = {".md": "markdown"}
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**"]
myst_heading_anchors = 4
myst_ref_domains = ["std"]  # the others would parse each link as a name of C++, and of others
smartquotes = False
highlight_language = "text"
pygments_style, pygments_dark_style = "friendly", "monokai"
html_show_search_summary = html_copy_source = html_show_sourcelink = False  # a summary would fetch pages, which file:// refuses
html_css_files = ["site.css"]
html_static_path = ["site.css"]
suppress_warnings = ["misc.highlighting_failure"]
OTHERS = ("python", "c", "c++")


def _add_contents(app, name, source):
    if name == ROOT:
        for title, pages in contents(all_pages())[0].items():
            source[0] += "\n```{toctree}\n:hidden:\n:titlesonly:\n:caption: %s\n%s\n```\n" % (title, "\n".join("/" + page for page in pages))


def _one_contents(app, page, template, context, tree):
    """The contents at the side differ between pages in where links begin and which page is this, so they are made once. Sphinx would take them
    from copies of the headings of all pages, for every page: three quarters of the time of the whole site."""
    from sphinx.environment.adapters.toctree import TocTree
    from sphinx.util.osutil import relative_uri

    whole = getattr(app, "heddle_contents", None)
    if whole is None:
        found = TocTree(app.env).get_toctree_for(ROOT, app.builder, collapse=False, titles_only=True, maxdepth=1, includehidden=True)
        whole = app.heddle_contents = app.builder.render_partial(found)["fragment"] if found else ""
    here = app.builder.get_target_uri(page)
    before, link, after = whole.partition(f'<li class="toctree-l1"><a class="reference internal" href="{here}">')
    mine = whole
    if link:
        first, _, rest = before.rpartition("<ul>")
        mine = f'{first}<ul class="current">{rest}<li class="toctree-l1 current"><a class="current reference internal" href="#">{after}'
    mine = re.sub(r' href="([^"#:]+)"', lambda found: f' href="{relative_uri(here, found[1])}"', mine)
    context["toctree"] = lambda **ways: mine


def _side_by_side(app, tree):
    from docutils import nodes

    for theirs in list(tree.findall(nodes.literal_block)):
        parent, at = theirs.parent, theirs.parent.index(theirs)
        ours = parent[at + 1] if at + 1 < len(parent) else None
        if theirs.get("language") in OTHERS and isinstance(ours, nodes.literal_block) and ours.get("language") == "cpp":
            parent.remove(theirs)
            parent.remove(ours)
            parent.insert(at, nodes.container("", theirs, ours, classes=["pair"]))


def _mend_debian(app, error):
    """Debian's furo needs a web server: a style at an absolute address, a script that is a module. The site is opened as files."""
    if error:
        return
    static = Path(app.outdir) / "_static"
    address, normalize = "/javascript/normalize.css/normalize.css", Path("/usr/share/javascript/normalize.css/normalize.css")
    style, script, part = static / "styles/furo.css", static / "scripts/furo.js", static / "scripts/gumshoe-patched.js"
    text = style.read_text(encoding="utf-8")
    if address in text and normalize.exists():
        (style.parent / normalize.name).write_text(normalize.read_text(encoding="utf-8"), encoding="utf-8")
        style.write_text(text.replace(address, normalize.name), encoding="utf-8")
    first, _, rest = script.read_text(encoding="utf-8").partition("\n")
    if first.startswith("import Gumshoe") and part.exists():
        script.write_text(part.read_text(encoding="utf-8") + ";\n" + rest, encoding="utf-8")


def setup(app):
    from sphinx.errors import ConfigError

    mistakes = contents(all_pages())[1]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    app.connect("source-read", _add_contents)
    app.connect("doctree-read", _side_by_side)
    app.connect("html-page-context", _one_contents, priority=400)  # before furo's
    app.connect("build-finished", _mend_debian)
