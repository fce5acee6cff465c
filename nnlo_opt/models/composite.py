"""Models that are trained together by steps of their own, such as a GAN: names for model modules."""

from nnlo_opt.engine.models.composite import CompositeAdapter, CompositeModel, Figures, ModelPart, PartTrainer

__all__ = ["CompositeAdapter", "CompositeModel", "Figures", "ModelPart", "PartTrainer"]
