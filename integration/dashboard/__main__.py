"""Draw the dashboard from the recording: `make dashboard-pictures`."""

from integration.dashboard.draw import picture
from integration.dashboard.recording import ROOT, load, rows

PICTURES = ROOT / "docs/pictures"


def main() -> None:
    """Write a picture for each row."""
    recording = load()
    PICTURES.mkdir(exist_ok=True)
    for row in rows():
        path = PICTURES / row.file
        path.write_text(picture(row, recording))
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
