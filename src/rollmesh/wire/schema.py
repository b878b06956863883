"""Schema: makes message classes from compiled .proto files (layer 4).

The generated modules in `_gen` hold a compiled descriptor each and call `load` when they are
imported. All of them live in a descriptor pool of our own: they can neither collide with another
package that defines the same names, nor do they depend on the version of protoc that wrote them
(plain generated code refuses to load under an older protobuf library).

Only `rollmesh.wire` may import this module and `_gen`; `import rollmesh` does not.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_pool = descriptor_pool.DescriptorPool()


def load(compiled: bytes) -> dict[str, Any]:
    """Return what a generated module defines: its messages, enums and enum values, by name.

    Args:
        compiled: A serialised `FileDescriptorProto`; the files that it imports are loaded already.
    """
    file: Any = _pool.AddSerializedFile(compiled)
    if file is None:  # the pure Python library returns nothing
        from google.protobuf import descriptor_pb2

        file = _pool.FindFileByName(descriptor_pb2.FileDescriptorProto.FromString(compiled).name)
    names: dict[str, Any] = {"DESCRIPTOR": file}
    for name, message in file.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        for value in enum.values:
            names[value.name] = value.number
    return names
