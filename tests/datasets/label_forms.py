"""Tables of labels in the formats of public datasets. Run this to print the table of their results in docs/datasets.md.

Rows are invented; names of columns and files, separators and the format of cells are those of the datasets.
"""

import gzip
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
import yaml
from PIL import Image

from heatproof.datasets.image_folder import image_folder
from heatproof.errors import HeatproofError

COUNT = 48


class Form(NamedTuple):
    """A table in the format of a dataset: its description, image files, bytes, and the options that it needs."""

    name: str
    image_files: list[str]
    table: str
    content: bytes | Callable[[], bytes]
    options: Mapping[str, Any] = MappingProxyType({})


def lines(header: str, rows: list[str], end: str = "\n") -> bytes:
    return (end.join([*([header] if header else []), *rows]) + end).encode()


def numbered(pattern: str) -> list[str]:
    return [pattern.format(number) for number in range(COUNT)]


def one_hot(number: int, classes: int, present: str = "1.0", absent: str = "0.0") -> str:
    return ",".join(present if number_of_class == number % classes else absent for number_of_class in range(classes))


ISIC = ["MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"]
ISIC_2019 = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
CHEXPERT = ["No Finding", "Cardiomegaly", "Edema", "Pleural Effusion"]
CELEBA = ["5_o_Clock_Shadow", "Bald", "Male", "Young"]
FINDINGS = ["No Finding", "Cardiomegaly", "Cardiomegaly|Effusion", "Effusion|Mass", "Mass", "Effusion"]
TAGS = ["clear primary", "haze primary water", "cloudy", "clear primary agriculture road", "partly_cloudy primary"]
PADCHEST = ["['normal']", "['cardiomegaly', 'pleural effusion']", "['scoliosis']", "['scoliosis', 'cardiomegaly']"]
VOC = ["chair", "car", "horse person", "person car", "person", "horse"]
PLACES = ["AnnualCrop", "Forest", "River"]
BIRDS = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross"]


def _metadata() -> bytes:
    rows = [{"file_name": f"{n:04d}.png", "label": ("cat", "dog")[n % 2]} for n in range(COUNT)]
    return lines("", list(map(json.dumps, rows)))


def _objects() -> bytes:
    labels = (["cat"], ["cat", "dog"], [])
    return lines("", [json.dumps({"file_name": f"{n:04d}.png", "labels": labels[n % 3]}) for n in range(COUNT)])


def _parquet() -> bytes:
    out = io.BytesIO()
    frame = pd.DataFrame({"file_name": numbered("{:04d}.png"), "label": [n % 4 for n in range(COUNT)]})
    frame.to_parquet(out)
    return out.getvalue()


def _records() -> bytes:
    return json.dumps([{"image": f"{n}.jpg", "class": ("cat", "dog")[n % 2]} for n in range(COUNT)]).encode()


JPEGS = numbered("ISIC_{:07d}.jpg")
STEMS = numbered("ISIC_{:07d}")
PNGS = numbered("{:08d}_000.png")
PLAIN = numbered("{:04d}.png")
VIEWS = numbered("train/patient{:05d}/study1/view1_frontal.jpg")
UNCERTAIN = ["1.0", "0.0", "", "-1.0"]
ISIC_OPTIONS = {"columns": {"label": ISIC}, "task": "multiclass"}

FORMS = [
    Form(
        "ISIC 2018, task 3",
        JPEGS,
        "ISIC2018_Task3_Training_GroundTruth.csv",
        lines("image," + ",".join(ISIC), [f"{stem},{one_hot(n, 7)}" for n, stem in enumerate(STEMS)]),
        ISIC_OPTIONS,
    ),
    Form(
        "ISIC 2018, without options",
        JPEGS,
        "ISIC2018_Task3_Training_GroundTruth.csv",
        lines("image," + ",".join(ISIC), [f"{stem},{one_hot(n, 7)}" for n, stem in enumerate(STEMS)]),
    ),
    Form(
        "ISIC 2019, where one class has no image",
        JPEGS,
        "ISIC_2019_Training_GroundTruth.csv",
        lines("image," + ",".join(ISIC_2019), [f"{stem},{one_hot(n, 8)},0.0" for n, stem in enumerate(STEMS)]),
        {"columns": {"label": ISIC_2019}, "task": "multiclass"},
    ),
    Form(
        "HAM10000",
        JPEGS,
        "HAM10000_metadata.csv",
        lines(
            "lesion_id,image_id,dx,dx_type,age,sex,localization",
            [
                f"HAM_{n // 2:07d},{stem},{('nv', 'mel', 'bkl', 'bcc')[n // 2 % 4]},histo,{'' if n % 7 == 0 else 60.0},"
                f"{('male', 'female')[n % 2]},back"
                for n, stem in enumerate(STEMS)
            ],
        ),
        {"columns": {"label": "dx", "group": "lesion_id"}},
    ),
    Form(
        "CheXpert",
        VIEWS,
        "train.csv",
        lines(
            "Path,Sex,Age,Frontal/Lateral,AP/PA," + ",".join(CHEXPERT),
            [
                f"CheXpert-v1.0-small/{path},Female,{40 + n},Frontal,AP,{UNCERTAIN[n % 3 % 2]},{UNCERTAIN[n % 4]},"
                f"{UNCERTAIN[(n + 1) % 4]},{UNCERTAIN[(n // 4) % 4]}"
                for n, path in enumerate(VIEWS)
            ],
        ),
        {"columns": {"label": CHEXPERT}, "task": "multilabel", "unknown": ["blank", -1]},
    ),
    Form(
        "CheXpert, without `unknown`",
        VIEWS,
        "train.csv",
        lines(
            "Path," + ",".join(CHEXPERT),
            [f"CheXpert-v1.0-small/{path},1.0,{UNCERTAIN[n % 4]},0.0,1.0" for n, path in enumerate(VIEWS)],
        ),
        {"columns": {"label": CHEXPERT}, "task": "multilabel"},
    ),
    Form(
        "ChestX-ray14, files in folders",
        [f"images_{1 + n % 3:03d}/images/{name}" for n, name in enumerate(PNGS)],
        "Data_Entry_2017.csv",
        lines(
            "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
            "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],",
            [f"{name},{FINDINGS[n % 6]},000,{n // 3},58,M,PA,2682,2749,0.143,0.143," for n, name in enumerate(PNGS)],
        ),
        {"columns": {"label": "Finding Labels", "group": "Patient ID"}, "separator": "|", "none": "No Finding"},
    ),
    Form(
        "ChestX-ray14, with `separator` alone",
        PNGS,
        "Data_Entry_2017.csv",
        lines("Image Index,Finding Labels", [f"{name},{FINDINGS[n % 6]}" for n, name in enumerate(PNGS)]),
        {"separator": "|"},
    ),
    Form(
        "ChestX-ray14, without options",
        PNGS,
        "Data_Entry_2017.csv",
        lines("Image Index,Finding Labels", [f"{name},{FINDINGS[n % 6]}" for n, name in enumerate(PNGS)]),
    ),
    Form(
        "PadChest, whose cells are lists",
        numbered("{:020d}.png"),
        "PADCHEST_chest_x_ray_images_labels.csv",
        lines(
            ",ImageID,ImageDir,PatientID,Labels",
            [f'{n},{name},0,{n // 2},"{PADCHEST[n % 4]}"' for n, name in enumerate(numbered("{:020d}.png"))],
        ),
        {"columns": {"file": "ImageID", "label": "Labels", "group": "PatientID"}, "none": "normal"},
    ),
    Form(
        "MIMIC-CXR, whose labels are of studies",
        numbered("p10/p10000032/s{0:08d}/a{0:04d}.jpg"),
        "mimic-cxr-chexpert.csv",
        lines("subject_id,study_id,Atelectasis,Edema", [f"10000032,{n},1.0," for n in range(COUNT)]),
    ),
    Form(
        "RSNA pneumonia, with a row for each box",
        numbered("{:036d}.png"),
        "stage_2_train_labels.csv",
        lines(
            "patientId,x,y,width,height,Target",
            [
                f"{name},{'264.0,152.0,213.0,379.0,1' if n % 2 else ',,,,0'}"
                for n, name in [(n, f"{n:036d}") for n in range(COUNT)] + [(1, f"{1:036d}")]
            ],
        ),
        {"columns": {"file": "patientId", "label": "Target"}},
    ),
    Form(
        "VinDr-CXR, with a row for each finding",
        PLAIN,
        "train.csv",
        lines(
            "image_id,class_name,class_id,rad_id",
            [
                f"{n:04d},{finding},0,R{reader}"
                for n in range(COUNT)
                for reader, finding in enumerate(
                    (("No finding",), ("Mass", "Edema"), ("Mass",), ("Mass", "Mass"))[n % 4]
                )
            ],
        ),
        {"task": "multilabel", "none": "No finding"},
    ),
    Form(
        "RSNA bone age",
        numbered("{}.png"),
        "boneage-training-dataset.csv",
        lines("id,boneage,male", [f"{n},{7 + 3 * n},{n % 2 == 0}" for n in range(COUNT)]),
        {"columns": {"file": "id", "label": "boneage"}, "task": "regression"},
    ),
    Form(
        "RSNA bone age, without `task`",
        numbered("{}.png"),
        "boneage-training-dataset.csv",
        lines("id,boneage,male", [f"{n},{7 + 3 * n},{n % 2 == 0}" for n in range(COUNT)]),
        {"columns": {"file": "id", "label": "boneage"}},
    ),
    Form(
        "ages of UTKFace",
        PLAIN,
        "ages.csv",
        lines("file,age", [f"{name},{20 + n // 2}" for n, name in enumerate(PLAIN)]),
        {"task": "regression"},
    ),
    Form(
        "ages of UTKFace, without `task`",
        PLAIN,
        "ages.csv",
        lines("file,age", [f"{name},{20 + n // 2}" for n, name in enumerate(PLAIN)]),
    ),
    Form(
        "APPA-REAL",
        numbered("{:06d}.jpg"),
        "gt_avg_train.csv",
        lines(
            "file_name,num_ratings,apparent_age_avg,apparent_age_std,real_age",
            [f"{n:06d}.jpg,36,{5 + n / 7:.4f},3.1,{5 + n}" for n in range(COUNT)],
        ),
        {"columns": {"label": "apparent_age_avg"}, "task": "regression"},
    ),
    Form(
        "CelebA, list_attr_celeba.txt",
        numbered("{:06d}.jpg"),
        "list_attr_celeba.txt",
        f"{COUNT}\n".encode()
        + lines(
            " ".join(CELEBA) + " ",
            [f"{n:06d}.jpg " + " ".join(f"{1 if n % (k + 2) else -1:2d}" for k in range(4)) for n in range(COUNT)],
        ),
        {"columns": {"file": 1, "label": CELEBA}, "task": "multilabel", "none": -1},
    ),
    Form(
        "CelebA, without `none`",
        numbered("{:06d}.jpg"),
        "list_attr_celeba.csv",
        lines(
            "image_id," + ",".join(CELEBA),
            [f"{n:06d}.jpg," + ",".join("1" if n % (k + 2) else "-1" for k in range(4)) for n in range(COUNT)],
        ),
        {"columns": {"label": CELEBA}, "task": "multilabel"},
    ),
    Form(
        "PASCAL VOC 2007, as fastai has it",
        [f"train/{name}" for name in numbered("{:06d}.jpg")],
        "train.csv",
        lines("fname,labels,is_valid", [f"{n:06d}.jpg,{VOC[n % 6]},{n % 2 == 0}" for n in range(COUNT)]),
        {"columns": {"file": "fname"}, "separator": " "},
    ),
    Form(
        "Planet Amazon",
        numbered("train_{}.jpg"),
        "train_v2.csv",
        lines("image_name,tags", [f"train_{n},{TAGS[n % 5]}" for n in range(COUNT)]),
        {"separator": " "},
    ),
    Form(
        "Planet Amazon, without options",
        numbered("train_{}.jpg"),
        "train_v2.csv",
        lines("image_name,tags", [f"train_{n},{TAGS[n % 5]}" for n in range(COUNT)]),
    ),
    Form(
        "Human Protein Atlas, numbers between blanks",
        PLAIN,
        "train.csv",
        lines("Id,Target", [f"{n:04d},{('16 0', '7 1 2 0', '5', '1')[n % 4]}" for n in range(COUNT)]),
        {"columns": {"file": "Id"}, "separator": " "},
    ),
    Form(
        "Dogs vs. Cats",
        [f"train/{('cat', 'dog')[n % 2]}.{n}.jpg" for n in range(COUNT)],
        "train.csv",
        lines("filename,category", [f"{('cat', 'dog')[n % 2]}.{n}.jpg,{('cat', 'dog')[n % 2]}" for n in range(COUNT)]),
    ),
    Form(
        "APTOS 2019",
        numbered("{:012x}.png"),
        "train.csv",
        lines("id_code,diagnosis", [f"{n:012x},{n % 5}" for n in range(COUNT)]),
        {"columns": {"file": "id_code"}},
    ),
    Form(
        "APTOS 2019, without options",
        numbered("{:012x}.png"),
        "train.csv",
        lines("id_code,diagnosis", [f"{n:012x},{n % 5}" for n in range(COUNT)]),
    ),
    Form("Hugging Face imagefolder", PLAIN, "metadata.jsonl", _metadata()),
    Form("Hugging Face imagefolder, with lists of labels", PLAIN, "metadata.jsonl", _objects()),
    Form("Parquet", PLAIN, "labels.parquet", _parquet),
    Form("a JSON list of records", numbered("{}.jpg"), "labels.json", _records()),
    Form(
        "COCO",
        PLAIN,
        "instances_train2017.json",
        b'{"images": [{"id": 1, "file_name": "0000.png"}], "annotations": [], "categories": []}',
    ),
    Form(
        "EuroSAT",
        [f"{PLACES[n % 3]}/{n}.jpg" for n in range(COUNT)],
        "train.csv",
        lines(
            ",Filename,Label,ClassName",
            [f"{n},{PLACES[n % 3]}/{n}.jpg,{n % 3},{PLACES[n % 3]}" for n in range(COUNT)],
        ),
        {"columns": {"label": "ClassName"}},
    ),
    Form(
        "`Path,Label,Split`, with backslashes",
        [f"pictures/{n}.png" for n in range(COUNT)],
        "labels.csv",
        lines(
            "Path;Label;Split",
            [f"pictures\\{n}.png;{('ant', 'bee')[n % 2]};{('Train', 'Val', 'TEST')[n // 2 % 3]}" for n in range(COUNT)],
            "\r\n",
        ),
    ),
    Form(
        "Fitzpatrick17k",
        numbered("{:032x}.jpg"),
        "fitzpatrick17k.csv",
        lines(
            "md5hash,fitzpatrick_scale,fitzpatrick_centaur,label,nine_partition_label,qc,url",
            [
                f"{n:032x},{n % 6 + 1},{n % 6 + 1},{('psoriasis', 'scabies')[n % 2]},inflammatory,,"
                for n in range(COUNT)
            ],
        ),
        {"columns": {"file": "md5hash"}},
    ),
    Form(
        "CUB-200-2011, images.txt, without a header",
        [f"images/{BIRDS[n % 3]}/Bird_{n:04d}.jpg" for n in range(COUNT)],
        "images.txt",
        lines("", [f"{n + 1} {BIRDS[n % 3]}/Bird_{n:04d}.jpg" for n in range(COUNT)]),
    ),
    Form(
        "a list as of Caffe, without a header",
        PLAIN,
        "train.txt",
        lines("", [f"{name} {n % 12}" for n, name in enumerate(PLAIN)]),
        {"header": False, "columns": {"file": 1, "label": 2}},
    ),
    Form(
        "integer classes that pandas stored as floats because of an empty cell",
        PLAIN,
        "labels.csv",
        lines("file,label", [f"{name},{'' if n == 12 else f'{n % 12}.0'}" for n, name in enumerate(PLAIN)]),
        {"unknown": "blank"},
    ),
    Form(
        "integer classes that pandas stored as floats because of an empty cell, without `unknown`",
        PLAIN,
        "labels.csv",
        lines("file,label", [f"{name},{'nan' if n == 12 else f'{n % 12}.0'}" for n, name in enumerate(PLAIN)]),
    ),
    Form(
        "Excel, semicolons, Windows-1252",
        PLAIN,
        "labels.csv",
        "\r\n".join(["file;label", *(f"{name};{('Käfer', 'Bär')[n % 2]}" for n, name in enumerate(PLAIN))]).encode(
            "cp1252"
        ),
        {"encoding": "cp1252"},
    ),
    Form(
        "Excel, without options",
        PLAIN,
        "labels.csv",
        "\r\n".join(["file;label", *(f"{name};{('Käfer', 'Bär')[n % 2]}" for n, name in enumerate(PLAIN))]).encode(
            "cp1252"
        ),
    ),
    Form(
        "Excel, Unicode text (UTF-16, tabs)",
        PLAIN,
        "labels.txt",
        "\r\n".join(["file\tlabel", *(f"{name}\t{('Käfer', 'Bär')[n % 2]}" for n, name in enumerate(PLAIN))]).encode(
            "utf-16"
        ),
    ),
    Form("an Excel workbook", PLAIN, "labels.xlsx", b"PK\x03\x04" + bytes(100)),
    Form(
        "ISIC 2016, without a header",
        JPEGS,
        "ISBI2016_ISIC_Part3_Training_GroundTruth.csv",
        lines("", [f"{stem},{('benign', 'malignant')[n % 2]}" for n, stem in enumerate(STEMS)]),
        {"header": False, "columns": {"file": 1, "label": 2}},
    ),
    Form(
        "ISIC 2017, where no column says nevus",
        JPEGS,
        "ISIC-2017_Training_Part3_GroundTruth.csv",
        lines(
            "image_id,melanoma,seborrheic_keratosis",
            [f"{stem},{float(n % 3 == 0)},{float(n % 3 == 1)}" for n, stem in enumerate(STEMS)],
        ),
        {"columns": {"label": ["melanoma", "seborrheic_keratosis"]}},
    ),
    Form(
        "ChestX-ray14, train_val_list.txt",
        PNGS,
        "train_val_list.txt",
        lines("", PNGS),
        {"header": False, "columns": {"file": 1}},
    ),
    Form(
        "ODIR-5K, whose cells are vectors",
        [f"{n // 2}_{('left', 'right')[n % 2]}.jpg" for n in range(COUNT)],
        "full_df.csv",
        lines(
            "ID,labels,filename",
            [f'{n // 2},"[{n % 2}, {1 - n % 2}, 0]",{n // 2}_{("left", "right")[n % 2]}.jpg' for n in range(COUNT)],
        ),
    ),
    Form(
        "RFMiD, with a column for each disease",
        numbered("{}.png"),
        "RFMiD_Training_Labels.csv",
        lines(
            "ID,Disease_Risk,DR,ARMD,MH",
            [f"{n},{int(n % 4 != 0)},{int(n % 4 == 1)},{int(n % 4 == 2)},{int(n % 4 > 1)}" for n in range(COUNT)],
        ),
        {"columns": {"file": "ID", "label": ["DR", "ARMD", "MH"]}, "task": "multilabel"},
    ),
    Form(
        "CelebA, list_eval_partition.csv, which has no labels",
        numbered("{:06d}.jpg"),
        "list_eval_partition.csv",
        lines("image_id,partition", [f"{n:06d}.jpg,{n % 3}" for n in range(COUNT)]),
    ),
    Form(
        "Places365, whose paths begin with a slash",
        [f"data_256/a/abbey/{n:08d}.jpg" for n in range(COUNT)],
        "places365_train_standard.txt",
        lines("", [f"/a/abbey/{n:08d}.jpg {n % 3}" for n in range(COUNT)]),
        {"header": False, "columns": {"file": 1, "label": 2}},
    ),
    Form(
        "Plant Pathology 2021",
        PLAIN,
        "train.csv",
        lines("image,labels", [f"{name},{('healthy', 'scab complex', 'scab')[n % 3]}" for n, name in enumerate(PLAIN)]),
        {"separator": " ", "none": "healthy"},
    ),
    Form(
        "per cent",
        PLAIN,
        "labels.csv",
        lines("file,label", [f"{name},{n % 12}%" for n, name in enumerate(PLAIN)]),
    ),
    Form(
        "country codes with NA (Namibia), without `unknown`",
        PLAIN,
        "labels.csv",
        lines("file,label", [f"{name},{('DE', 'NA', 'FR')[n % 3]}" for n, name in enumerate(PLAIN)]),
    ),
    Form(
        "classes in two spellings",
        PLAIN,
        "labels.csv",
        lines("file,label", [f"{name},{('True', 'FALSE', 'true')[n % 3]}" for n, name in enumerate(PLAIN)]),
    ),
    Form(
        "packed by gzip",
        PLAIN,
        "labels.csv.gz",
        lambda: gzip.compress(lines("file,label", [f"{name},{('a', 'b')[n % 2]}" for n, name in enumerate(PLAIN)])),
    ),
]


def write_form(folder: Path, form: Form) -> Path:
    """Write the image files and the table of a form, and return the folder of image files."""
    for number, name in enumerate(form.image_files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    (folder / form.table).write_bytes(form.content() if callable(form.content) else form.content)
    return folder


def opened(folder: Path, form: Form):
    return image_folder(seed=0, root=str(folder), labels=form.table, size=8, **form.options)


def describe_labels(folder: Path, form: Form) -> str:
    """Return a description of the labels of a form, or the error message."""
    write_form(folder, form)
    try:
        dataset = opened(folder, form)
    except HeatproofError as error:
        message = str(error).replace(str(folder), "FOLDER").replace("FOLDER/", "").replace("|", "\\|")
        return f"asked: {message}"
    names = [name.replace("|", "\\|") for name in dataset.class_names]
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    notes = [
        note.replace("|", "\\|") for note in dataset.notes if "by its columns" not in note and "would keep" not in note
    ]
    return "; ".join([f"`{dataset.task}`: {listed}", *notes])


def table() -> list[str]:
    """Return one row for each form, with the result of the code."""
    rows = []
    for form in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            outcome = describe_labels(Path(folder), form)
        options = (
            yaml.safe_dump(dict(form.options), default_flow_style=True, width=1000).strip()[1:-1].replace("|", "\\|")
        )
        rows.append(f"| {form.name} | {f'`{options}`' if options else ''} | {outcome} |")
    return rows


if __name__ == "__main__":
    print("\n".join(table()))
